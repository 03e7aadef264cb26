"""Files of single tensors: what is not what it says is refused before it is unpacked."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import torch

from probe_nb.dump.tensor_files import TensorFile
from probe_nb.errors import RunFormatError


def test_a_small_file_that_unpacks_to_a_large_tensor_is_not_unpacked(tmp_path, monkeypatch):
    plain, packed = tmp_path / "plain.pt", tmp_path / "packed.pt"
    torch.save(torch.zeros(2**20), plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for each in source.infolist():
            target.writestr(each.filename, source.read(each))
    assert packed.stat().st_size < 2**16
    assert TensorFile(plain, tmp_path, "float32", (2**20,)).result().nbytes == 2**22
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(RunFormatError, match="fewer elements"):
        TensorFile(packed, tmp_path, "float32", (2**20,)).result()


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
@pytest.mark.parametrize("percent", [0, 10, 50, 90, 99])
def test_a_file_that_was_cut_is_refused(tmp_path, suffix, percent):
    path, truth = tmp_path / f"x{suffix}", torch.arange(3000.0)
    torch.save(truth, path) if suffix == ".pt" else np.save(path, truth.numpy())
    file = TensorFile(path, tmp_path, "float32", (3000,))
    assert file.result().tobytes() == truth.numpy().tobytes()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(RunFormatError, match=r"Cannot read|is not read"):
        file.result()
