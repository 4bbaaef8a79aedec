from __future__ import annotations

import pytest
import torch

from puf_client.worker.devices import choose
from puf_common.errors import UsageError


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    shares: list[tuple[float, str]] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append((share, str(device)))
    )
    return shares


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_auto_says_so_and_cuda_is_refused() -> None:
    chosen = choose("auto", memory_fraction=0.5)
    assert chosen.device == torch.device("cpu")
    assert chosen.why == "computing on the CPU: PyTorch finds no GPU"
    for spec in ("cuda", "cuda:1"):
        with pytest.raises(
            UsageError, match=f"device {spec} was requested, but PyTorch finds no GPU; use --device cpu"
        ):
            choose(spec)


def test_a_build_without_cuda_is_another_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert "built without CUDA" in choose("auto").why


def test_clients_are_distributed_over_gpus(two_gpus: list[tuple[float, str]]) -> None:
    assert [str(choose("auto", index=i).device) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert str(choose("cuda:1").device) == "cuda:1"
    assert choose("cpu").device.type == "cpu"
    assert two_gpus == []
    chosen = choose("cuda", index=1, memory_fraction=0.25)
    assert two_gpus == [(0.25, "cuda:1")]
    assert chosen.why == "computing on cuda:1 (Some GPU), as requested, with at most 25% of its memory"
    with pytest.raises(UsageError, match="only cuda:0 to cuda:1"):
        choose("cuda:2")


@pytest.mark.parametrize("spec", ["gpu", "", "cuda:", "cuda:x", "CPU", "cpu:0"])
def test_unknown_devices_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
        choose(spec)


@pytest.mark.parametrize("fraction", [0, -1, 1.1])
def test_a_memory_fraction_above_1_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="fraction of a GPU's memory"):
        choose("auto", memory_fraction=fraction)
