"""Sound as a model gets it: log-mel features of samples, and samples of any file."""

import functools
from pathlib import Path

import numpy as np

from experiments.harness.errors import UserError

RATE = 16_000  # samples a second
HOP, WINDOW = 200, 400  # samples: a frame each 12.5 ms, of 25 ms
MELS = 40
SECONDS = HOP / RATE  # between frames
LOUDEST = 40.0  # seconds of a file


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Return the log-mel features of samples at RATE: float16 [frames, MELS], each of mean 0.

    Mel filters (Stevens et al. 1937; O'Shaughnessy's formula) of the power of Hann windows; each
    feature's mean over the recording is taken off, and so is how loud it is.

    >>> log_mel(np.zeros(RATE)).shape
    (79, 40)
    """
    samples = np.asarray(samples, np.float32)
    samples = np.pad(samples, (0, max(WINDOW - len(samples), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW).astype(np.float32))) ** 2
    features = np.log(power @ _filters() + 1e-6)
    features -= features.mean(axis=0)
    return (features / 4).astype(np.float16)


@functools.cache
def _filters() -> np.ndarray:
    """Triangles [frequencies, MELS] whose corners are evenly spaced on the mel scale."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    frequencies = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (frequencies - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies) / (corners[2:] - corners[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return samples at RATE, of samples at another rate."""
    if rate == RATE:
        return np.asarray(samples, np.float32)
    from math import gcd

    from scipy.signal import resample_poly

    common = gcd(rate, RATE)
    return resample_poly(samples, RATE // common, rate // common).astype(np.float32)


def read(path: Path) -> np.ndarray:
    """Return the samples of a sound file at RATE, its channels' mean: WAV, FLAC, OGG …

    Whatever `soundfile` reads, of any rate and width.
    """
    import soundfile

    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, TypeError) as error:
        raise UserError(f"{path} cannot be read as sound: {error}") from error
    if not len(samples):
        raise UserError(f"{path} holds no sound.")
    if not np.isfinite(samples).all():
        raise UserError(f"{path} holds samples that are not finite.")
    return resampled(samples.mean(axis=1), rate)
