"""Speech of espeak-ng (GPL-3), by its C interface: samples, and when each word begins.

Its state is global: one voice at a time in a process.
"""

import ctypes
import functools
from typing import NamedTuple

import numpy as np

from experiments.harness.errors import UserError

RETRIEVAL, WORDS_AND_QUIET = 2, 0x8001
WORD = 1  # a type of events
RATE, PITCH = 1, 3  # parameters


class Spoken(NamedTuple):
    """What was said.

    Attributes:
        samples: float32, between -1 and 1.
        rate: of them, a second.
        starts: of each word, in seconds.
    """

    samples: np.ndarray
    rate: int
    starts: list[float]


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class Speaker:
    """The library, loaded once in a process."""

    def __init__(self):
        try:
            import espeakng_loader
        except ModuleNotFoundError as error:
            needed = "pip install -r requirements.txt"
            raise UserError(f"synthetic speech needs espeakng-loader: {needed}") from error
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path()).encode()
        self._rate = self._library.espeak_Initialize(RETRIEVAL, 0, data, WORDS_AND_QUIET)
        if self._rate <= 0:
            raise UserError(f"espeak-ng does not start: code {self._rate}.")
        self._sound: list[bytes] = []
        self._starts: list[float] = []
        self._callback = _Callback(self._take)
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples, count, events) -> int:
        if samples and count:
            self._sound.append(ctypes.string_at(samples, 2 * count))
        place = 0
        while events[place].type:
            if events[place].type == WORD:
                self._starts.append(events[place].audio_position / 1000)
            place += 1
        return 0

    def __call__(self, text: str, voice: str, rate: int, pitch: int) -> Spoken:
        """Say a text: voice as "en-us+f3", rate in words a minute, pitch from 0 to 99."""
        self._sound, self._starts = [], []
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise UserError(f"espeak-ng has no voice {voice!r}.")
        self._library.espeak_SetParameter(RATE, rate, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        written = text.encode()
        self._library.espeak_Synth(written, len(written) + 1, 0, 1, 0, 1, None, None)
        self._library.espeak_Synchronize()
        samples = np.frombuffer(b"".join(self._sound), np.int16).astype(np.float32) / 2**15
        return Spoken(samples, self._rate, self._starts)


@functools.cache
def speaker() -> Speaker:
    """Return this process's speaker."""
    return Speaker()
