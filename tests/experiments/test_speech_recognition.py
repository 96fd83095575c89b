"""Speech: features, files of any form, joined clips, times of words, a run end to end."""

import json
import os

import numpy as np
import pytest

from experiments import cli
from experiments.data import speech, speech_features
from experiments.data.speech import Utterance
from experiments.data.speech_features import HOP, RATE, SECONDS
from experiments.speech_recognition import Sound, data, report

soundfile = pytest.importorskip("soundfile")
RNG = np.random.default_rng(0)


def tone(seconds=0.5, rate=RATE, frequency=500.0):
    return 0.4 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    options = ["--smoke", "--steps", "2", "--twin", "--location", "2", "--window", "3", "5"]
    argv = ["speech-recognition", *options, "--output-dir", str(directory)]
    assert cli.main(argv) == 0
    return directory


def test_training_reports_errors_and_where_attention_is(trained):
    run = trained / "speech-recognition" / "default"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["character_error_rate"] > 0
    assert metrics["word_error_rate"] > 0
    assert 0 <= metrics["pointing_accuracy"] <= 1
    rows = {row["system"]: row for row in metrics["tests"]}
    assert set(rows) == {"attention", "no attention"}
    assert "pointing_accuracy" not in rows["no attention"]
    assert (run / "figures" / "alignment_1.png").stat().st_size > 10_000


def test_evaluation_says_the_same_again(trained):
    path = trained / "speech-recognition" / "default" / "metrics.json"
    before = json.loads(path.read_text())
    argv = ["speech-recognition", "evaluate", "--smoke", "--output-dir", str(trained)]
    assert cli.main(argv) == 0
    again = json.loads(path.read_text())
    assert again["tests"] == before["tests"]


def test_files_of_any_form_are_transcribed_and_a_bad_one_is_told(trained, tmp_path, capsys):
    stereo = np.stack([tone(rate=44_100)] * 2, axis=1)
    soundfile.write(tmp_path / "a.wav", stereo, 44_100, subtype="PCM_24")
    soundfile.write(tmp_path / "b.flac", tone(rate=8000), 8000)
    (tmp_path / "c.wav").write_bytes(b"no sound")
    soundfile.write(tmp_path / "d.wav", np.zeros(0), 8000)
    files = [str(tmp_path / name) for name in ("a.wav", "c.wav", "b.flac", "d.wav")]
    where = ["--output-dir", str(trained), "--plot", str(tmp_path / "first.html")]
    assert cli.main(["speech-recognition", "transcribe", *files, *where]) == 2
    said = capsys.readouterr()
    assert [line.split("\t")[0] for line in said.out.splitlines()] == [files[0], files[2]]
    assert "c.wav cannot be read as sound" in said.err
    assert "d.wav holds no sound" in said.err
    assert "2 of 4 files could not be read" in said.err
    assert '"audio": {"url": "data:audio/wav;base64,' in (tmp_path / "first.html").read_text()


def test_features_are_the_same_at_any_loudness_and_rate():
    quiet, loud = (speech_features.log_mel(factor * tone()) for factor in (0.1, 1.0))
    assert quiet.shape == (1 + (len(tone()) - 400) // HOP, 40)
    assert np.abs(quiet.astype(float) - loud).max() < 0.2
    peak = speech_features.log_mel(np.concatenate([tone(), tone(frequency=2000.0)])).astype(float)
    early, late = peak[5], peak[-5]
    assert early.argmax() < late.argmax()
    other = speech_features.resampled(tone(rate=8000), 8000)
    assert len(other) == len(tone())
    assert np.abs(other[200:-200] - tone()[200:-200]).max() < 0.02


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_32", "FLOAT"])
def test_every_width_is_read_alike(subtype, tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(), RATE, subtype=subtype)
    samples = speech_features.read(tmp_path / "a.wav")
    assert np.abs(samples - tone()).max() < 0.01


def clips(folder, speakers=("ann", "bob"), count=4):
    folder.mkdir()
    for speaker in speakers:
        for label in (0, 1, 7):
            for number in range(count):
                samples = tone(0.1 + 0.05 * label, 8000, 300 + 100 * label)
                soundfile.write(folder / f"{label}_{speaker}_{number}.wav", samples, 8000)
    return folder


def test_clips_are_joined_and_their_times_kept(tmp_path):
    sounds = data.load(
        Sound(recordings=clips(tmp_path / "clips"), test_speakers=("bob",), joined=30)
    )
    assert set(sounds.tests) == {data.KNOWN, data.LEFT_OUT}
    assert {each.voice for each in sounds.training} == {"ann"}
    assert {each.voice for each in sounds.tests[data.LEFT_OUT]} == {"bob"}
    lengths = {"zero": 0.1, "one": 0.15, "seven": 0.45}
    speeds = []
    for each in (*sounds.training, *sounds.tests[data.LEFT_OUT]):
        words = each.text.split()
        assert 3 <= len(words) == len(each.words) <= 7
        assert each.words[-1, 1] <= len(each.features) * SECONDS + 0.05
        ratios = [
            (end - start) / lengths[word]
            for word, (start, end) in zip(words, each.words, strict=True)
        ]
        assert np.ptp(ratios) < 0.01  # one speed for an utterance
        speeds.append(ratios[0])
    training, tested = np.split(np.array(speeds), [len(sounds.training)])
    np.testing.assert_allclose(tested, 1, atol=0.01)
    assert 0.85 < training.min() < 0.95 < 1.05 < training.max() < 1.17


def test_letters_belong_to_the_time_of_their_word():
    words = np.array([(0.0, 0.4), (0.5, 1.0)])
    utterance = Utterance(np.zeros((80, 40)), "a bc", words, "")
    regions = speech.regions(utterance, 20, 4)  # 50 ms each, centres at 25, 75, …
    assert np.flatnonzero(regions[0]).tolist() == list(range(9))
    assert not regions[1].any()
    assert np.flatnonzero(regions[2]).tolist() == list(range(9, 20))
    np.testing.assert_array_equal(regions[2], regions[3])


def test_sentences_and_voices_of_the_test_are_its_own():
    parts = {part: speech.jobs(part, 150) for part in speech.COUNTS}
    texts = {part: {job.text for job in some} for part, some in parts.items()}
    assert speech.WOODCHUCK in texts["test"]
    assert not texts["test"] & (texts["training"] | texts["dev"])
    assert {job.voice for job in parts["test"]} <= set(speech.TEST_VOICES)
    assert not set(speech.TEST_VOICES) & set(speech.VOICES)
    used = {word for text in texts["training"] for word in text.split()}
    assert set(speech.WOODCHUCK.split()) <= used | {"how", "much", "if"}


def test_speech_is_made_with_the_times_of_its_words(tmp_path):
    pytest.importorskip("espeakng_loader")
    job = speech.jobs("test", 1)[0]
    utterance = speech.say(job)
    assert len(utterance.words) == len(speech.WOODCHUCK.split())
    assert (np.diff(utterance.words[:, 0]) > 0).all()
    assert utterance.words[-1, 1] <= len(utterance.features) * SECONDS + 0.05
    speech.save(tmp_path / "a.npz", {"test": [utterance, utterance]})
    (one, other) = speech.read(tmp_path / "a.npz")["test"]
    for each in (one, other):
        np.testing.assert_array_equal(each.features, utterance.features)
        np.testing.assert_array_equal(each.words, utterance.words)
        assert (each.text, each.voice) == (utterance.text, utterance.voice)


def test_own_files(tmp_path):
    for name in "abc":
        soundfile.write(tmp_path / f"{name}.ogg", tone(), RATE)
    (tmp_path / "t.tsv").write_text("a.ogg\tHello  there\nb.ogg\tyes\nc.ogg\tno\n")
    sounds = data.load(Sound(audio=tmp_path, transcripts=tmp_path / "t.tsv"))
    assert [each.text for each in sounds.training] == ["yes", "no"]
    assert [each.text for each in sounds.dev] == ["hello there"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--audio", "x"), "--audio and --transcripts go together. Missing: --transcripts"),
        (("--test-speakers", "x"), "--test-speakers needs --recordings"),
        (("--recordings", "x"), "--recordings needs a folder"),
        (("--recordings", "."), "holds no sound file"),
        (("--recordings", "clips", "--test-speakers", "eve"), "no clip is eve's. Known: ann, bob"),
        (("--recordings", "clips", "--test-speakers", "ann", "bob"), "leaves nobody"),
        (("--audio", "clips", "--transcripts", "t.tsv"), "line 1 of t.tsv must be FILE, a tab"),
        (("--audio", "clips", "--transcripts", "u.tsv"), "line 1 of u.tsv names x.wav, which"),
        (("--score", "none", "--location", "3"), "--location needs --model recurrent"),
    ],
)
def test_mistakes_are_one_line(options, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    clips(tmp_path / "clips", count=1)
    (tmp_path / "t.tsv").write_text("a.wav hello\n")
    (tmp_path / "u.tsv").write_text("x.wav\thello\n")
    assert cli.main(["speech-recognition", *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert "runs" not in os.listdir(tmp_path)


def test_attention_that_goes_back_is_counted():
    assert report.monotonicity([np.eye(4)[[0, 1, 1, 3]]]) == 1
    assert report.monotonicity([np.eye(4)[[3, 2, 1, 3]]]) == pytest.approx(1 / 3)
