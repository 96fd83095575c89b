"""Where the data come from: made, bundled, packaged or a person's own files."""
