"""Files of lines: turned over, bounded, and whole whatever happens to the process that writes."""

from __future__ import annotations

import pytest

from raypool.server.record_files import RecordFile


def file_at(path, **fields):
    return RecordFile(**{"path": path / "logs" / "lines.jsonl", "most_bytes": 50, "older": 2, **fields})


def all_lines(file):
    return [line for path in reversed(file.files()) for line in file.lines(path)]


def test_a_file_is_turned_over_when_it_is_full_and_so_many_are_kept(tmp_path):
    file = file_at(tmp_path, head=lambda: "head")
    for number in range(40):
        file.append([f"line {number:03}"])
    assert len(file.files()) == 3
    assert all(file.lines(path)[0] == "head" for path in file.files())
    kept = [line for line in all_lines(file) if line != "head"]
    assert kept == [f"line {number:03}" for number in range(40 - len(kept), 40)]
    assert all(path.stat().st_size < 50 + len("line 000\n") for path in file.files())


def test_what_a_dead_process_left_half_written_is_cut_off(tmp_path):
    file_at(tmp_path).append(["one", "two"])
    path = tmp_path / "logs" / "lines.jsonl"
    path.write_bytes(path.read_bytes() + b'{"three": ')
    assert all_lines(file_at(tmp_path)) == ["one", "two"]
    file_at(tmp_path).append(["four"])
    assert path.read_text() == "one\ntwo\nfour\n"


def test_after_a_write_that_failed_the_next_one_leaves_nothing_of_it(tmp_path, monkeypatch):
    file = file_at(tmp_path)
    file.append(["one"])
    whole = file.path.open

    class Full:
        def __init__(self, *how):
            self.file = whole(*how)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            self.file.write(data[:2])
            raise OSError("no space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(type(file.path), "open", lambda path, *how: Full(*how))
    with pytest.raises(OSError, match="no space"):
        file.append(["two"])
    monkeypatch.undo()
    assert file.path.read_text() == "one\ntw"
    file.append(["two", "three"])
    assert file.path.read_text() == "one\ntwo\nthree\n"


def test_a_file_that_somebody_removed_is_begun_again(tmp_path):
    file = file_at(tmp_path, head=lambda: "head")
    file.append(["one"])
    file.path.unlink()
    file.append(["two"])
    assert file.path.read_text() == "head\ntwo\n"
