"""The measured peak is exact: every expectation here is worked out by hand from the sizes of the blocks."""

from __future__ import annotations

import pytest
import torch

from dovetail.inspect.memory import PeakReport, measure_peak
from dovetail.torch_compat.profiler import record_allocator_events, self_check


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8)


def test_sequence_of_blocks() -> None:
    def fn() -> torch.Tensor:
        first = _bytes(1000)
        second = _bytes(3000)
        del first
        third = _bytes(500)
        del second
        return third

    report = measure_peak(fn)
    assert (report.peak_bytes, report.allocated_bytes, report.end_bytes) == (4000, 4500, 500)
    assert report.live_bytes == (1000, 4000, 3000, 3500, 500)
    assert report.result.numel() == 500


def test_nothing_allocated() -> None:
    tensor = _bytes(100)
    report = measure_peak(lambda t: t.view(10, 10), tensor)
    assert report == PeakReport(0, 0, 0, report.result, ())
    assert report.result.data_ptr() == tensor.data_ptr()


def test_a_temporary_lives_until_the_next_operator_has_read_it() -> None:
    x = torch.ones(256)  # 1024 bytes
    report = measure_peak(lambda t: t.neg().exp().neg(), x)
    assert (report.peak_bytes, report.allocated_bytes, report.end_bytes) == (2048, 3072, 1024)


def test_arguments_and_freed_older_blocks_are_not_counted() -> None:
    held = [_bytes(10_000)]

    def fn() -> torch.Tensor:
        held.clear()
        return _bytes(64)

    report = measure_peak(fn)
    assert (report.peak_bytes, report.end_bytes) == (64, 64)


def test_a_block_known_from_an_earlier_recording_is_not_subtracted() -> None:
    earlier = [measure_peak(_bytes, 4096).result]

    def fn() -> torch.Tensor:
        earlier.clear()
        return _bytes(64)

    report = measure_peak(fn)
    assert (report.peak_bytes, report.allocated_bytes, report.end_bytes) == (64, 64, 64)


def test_gradients_are_what_a_backward_leaves_behind() -> None:
    weight = torch.ones(32, 16, requires_grad=True)
    x = torch.ones(8, 32)
    report = measure_peak(lambda: (x @ weight).sum().backward())
    assert report.end_bytes == weight.numel() * 4
    assert weight.grad is not None
    assert report.peak_bytes >= report.end_bytes


def test_measuring_twice_gives_the_same_report() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    x = torch.randn(8, 16)

    def fn() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    fn()
    model.zero_grad(set_to_none=True)
    first = measure_peak(fn)
    model.zero_grad(set_to_none=True)
    assert measure_peak(fn).live_bytes == first.live_bytes


def test_an_error_of_the_measured_call_passes_through_and_leaves_no_recording_open() -> None:
    def fail() -> None:
        raise ValueError("from the measured call")

    with pytest.raises(ValueError, match="from the measured call"):
        measure_peak(fail)
    assert measure_peak(_bytes, 32).peak_bytes == 32


def test_trace_lines_are_dropped_and_other_lines_pass(capfd: pytest.CaptureFixture[str]) -> None:
    measure_peak(_bytes, 8)
    assert "USDT" not in capfd.readouterr().err


def test_events_carry_address_and_size_in_order() -> None:
    _, events = record_allocator_events(lambda: _bytes(128).add_(1).sum().item())
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    assert sum(event.size_bytes for event in events) == 0
    assert events[0].size_bytes == 128


def test_self_check_passes_on_this_torch() -> None:
    assert self_check() is None
