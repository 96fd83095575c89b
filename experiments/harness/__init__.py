"""What every experiment stands on: runs, tables, errors, option types, training."""
