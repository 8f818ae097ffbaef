"""Tensors go to a tier and come back, bit for bit, and what goes wrong there does no harm here."""

from __future__ import annotations

import doctest
import errno
import gc
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from dtr_fx import measure_peak
from dtr_fx.costs import bandwidth
from dtr_fx.errors import DTRError, OffloadError, OptionError
from dtr_fx.tiers import forms as forms_module
from dtr_fx.tiers import tier as tier_module
from dtr_fx.tiers.forms import parse_tier
from dtr_fx.tiers.operators import offload, reload, usage, wait_offload, wait_reload
from dtr_fx.tiers.pinned import check_device
from dtr_fx.tiers.tier import Bandwidth, Tier

MIB = 2**20
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def moved_out(tensor: Tensor, tier: str) -> Tensor:
    handle = offload(tensor, tier)
    wait_offload(handle, tensor)
    return handle


def brought_back(handle: Tensor, like: Tensor) -> Tensor:
    tensor = reload(handle, like.shape, like.stride(), like.dtype, like.device)
    wait_reload(tensor, handle)
    return tensor


def same_bits(left: Tensor, right: Tensor) -> bool:
    as_bytes = [each.resolve_conj().reshape(-1).clone().view(torch.uint8) for each in (left, right)]
    return torch.equal(*as_bytes) and left.dtype == right.dtype and left.shape == right.shape


# --- there and back ----------------------------------------------------------------------------------------

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype, folder: str) -> None:
    tensor = torch.randint(0, 2, (3, 5, 16), dtype=torch.uint8) if dtype == torch.bool else None
    noise = torch.randint(0, 256, (3, 5, 16), dtype=torch.uint8) if tensor is None else tensor
    tensor = noise.view(dtype)  # with what is no number, too
    again = brought_back(moved_out(tensor, folder), tensor)
    assert same_bits(again, tensor)
    assert again.data_ptr() != tensor.data_ptr()


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(3, 4).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.randn(0, 3),
    "in a larger storage": lambda: torch.randn(10, 4)[3:5],
    "with holes": lambda: torch.randn(10, 4)[::2, ::3],
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "of many pages": lambda: torch.randn(300, 1000),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_back(layout: str, folder: str) -> None:
    tensor = LAYOUTS[layout]()
    again = brought_back(moved_out(tensor, folder), tensor)
    assert same_bits(again, tensor.detach())
    assert again.stride() == tensor.stride()
    assert not again.requires_grad


def test_a_handle_can_be_reloaded_many_times_and_at_once(folder: str) -> None:
    tensor = torch.randn(1000)
    handle = offload(tensor, folder)  # not waited for: a read waits for the write
    reloads = [reload(handle, [1000], [1], torch.float32, CPU) for _ in range(5)]
    for each in reloads[::-1]:
        wait_reload(each, handle)
        wait_reload(each, handle)
    assert all(torch.equal(each, tensor) for each in reloads)


def test_a_copy_that_is_under_way_needs_nobody(folder: str) -> None:
    """The tensor may be freed before: its memory is not used again until the copy has ended."""
    values = [torch.full((100_000,), float(number)) for number in range(20)]
    handles = [offload(value.clone(), folder) for value in values]
    for value, handle in zip(values, handles):
        assert torch.equal(brought_back(handle, value), value)
    for value, handle in zip(values, handles):
        reload(handle, value.shape, value.stride(), value.dtype, CPU)  # given up at once
    assert torch.equal(brought_back(handles[3], values[3]), values[3])


def test_threads(folder: str) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        held: list[tuple[Tensor, Tensor]] = []
        for step in range(40):
            tensor = torch.rand(int(torch.randint(1, 5000, (), generator=generator)), generator=generator)
            held.append((moved_out(tensor, folder), tensor))
            handle, tensor = held[(7 * step) % len(held)]
            if not torch.equal(brought_back(handle, tensor), tensor):
                failures.append(f"thread {seed}, step {step}")
            if len(held) > 8:
                del held[0]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert usage(folder).now == 0


def test_in_a_compiled_graph(folder: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        handle = torch.ops.dtr_fx.offload(y, folder)
        torch.ops.dtr_fx.wait_offload(handle, y)
        again = torch.ops.dtr_fx.reload(handle, y.shape, y.stride(), y.dtype, y.device)
        torch.ops.dtr_fx.wait_reload(again, handle)
        return again * 2

    x = torch.randn(64)
    with torch.no_grad():
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), x.sin() * 2)
    assert usage(folder).now == 0


# --- what is held ------------------------------------------------------------------------------------------


class Moved(torch.autograd.Function):
    """A sine whose argument is out between the passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tier: str) -> Tensor:
        ctx.save_for_backward(moved_out(x, tier))
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * brought_back(ctx.saved_tensors[0], torch.empty(1000)).cos(), None


def test_a_slot_dies_with_what_saved_its_handle(folder: str) -> None:
    x = torch.randn(1000, requires_grad=True)
    for goes_backward in (True, False, True):
        y = Moved.apply(x, folder)
        assert usage(folder).now == 4096
        if goes_backward:
            y.sum().backward()
            assert torch.equal(x.grad, x.detach().cos())
            x.grad = None
        del y
        assert usage(folder).now == 0
    assert usage(folder).peak == usage(folder).held == 4096


def test_a_view_of_a_handle_keeps_the_slot(folder: str) -> None:
    tensor = torch.randn(10)
    handle = moved_out(tensor, folder)[0].detach()
    assert torch.equal(brought_back(handle, tensor), tensor)
    del handle
    assert usage(folder).now == 0


def test_room_that_was_given_back_is_used_again(folder: str) -> None:
    """Whatever comes and goes, the file is no longer than what was out at one time."""
    draw = random.Random(0)
    held: dict[Tensor, Tensor] = {}
    for step in range(400):
        if held and draw.random() < 0.5:
            handle, tensor = draw.choice(list(held.items()))
            assert torch.equal(brought_back(handle, tensor), tensor)
            del held[handle], handle
        else:
            size = draw.choice([0, 1, 4096, 5000, 30_000, 100_000])
            tensor = torch.full((size,), step % 251, dtype=torch.uint8)
            held[moved_out(tensor, folder)] = tensor
        used = usage(folder)
        assert used.now == sum(-(-tensor.nbytes // 4096) * 4096 for tensor in held.values())
        assert used.peak == used.held
    assert used.peak > used.now > 0
    for handle, tensor in held.items():
        assert torch.equal(brought_back(handle, tensor), tensor)


def test_what_was_moved_out_is_not_in_the_measured_peak(folder: str) -> None:
    def values(is_out: bool) -> Tensor:
        kept = []
        for number in range(8):
            tensor = torch.full((MIB // 4,), float(number))
            kept.append(moved_out(tensor, folder) if is_out else tensor)
        total = torch.zeros(MIB // 4)
        del tensor
        while kept:
            value = kept.pop()
            if is_out:
                value = brought_back(value, total)
            total += value
        return total

    assert measure_peak(values, is_out=False) == 9 * MIB
    assert measure_peak(values, is_out=True) == 2 * MIB
    assert torch.equal(values(is_out=True), values(is_out=False))


def test_a_limit_is_not_exceeded(folder: str) -> None:
    tier = str(parse_tier(f"{folder}:12KiB"))
    tensor = torch.zeros(2 * 1024)
    handle = moved_out(tensor, tier)
    with pytest.raises(OffloadError, match=r"8\.00 KiB cannot be moved out: 8\.00 KiB of the 12\.0 KiB"):
        offload(tensor, tier)
    del handle
    assert torch.equal(brought_back(moved_out(tensor, tier), tensor), tensor)


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[str]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield str(place)
    subprocess.run(["umount", "-l", place], check=True)


def goes_on_after_an_error(tier: str, code: int) -> None:
    """What fits is there before, and comes back after; so does what is moved out then."""
    kept = torch.randn(1000)
    handle, large = moved_out(kept, tier), torch.zeros(2 * MIB, dtype=torch.uint8)
    refused = offload(large, tier)
    for _ in range(2):
        with pytest.raises(OffloadError) as caught:
            wait_offload(refused, large)
    assert isinstance(caught.value, DTRError)
    text = str(caught.value)
    assert "cannot write 2.00 MiB" in text
    assert tier in text
    assert os.strerror(code) in text
    assert "name another folder" in text
    again = torch.empty_like(large)
    with pytest.raises(OffloadError, match="cannot write"):
        wait_reload(again, refused)
    del refused, caught
    gc.collect()
    assert usage(tier).now == 4096
    small = torch.randn(100_000)
    assert torch.equal(brought_back(moved_out(small, tier), small), small)
    assert torch.equal(brought_back(handle, kept), kept)


def test_a_full_disk(small_disk: str) -> None:
    goes_on_after_an_error(small_disk, errno.ENOSPC)


def test_a_bound_on_files(folder: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        goes_on_after_an_error(folder, errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    place, tensor = tmp_path / "gone", torch.randn(100)
    handle = offload(tensor, str(place))
    with pytest.raises(OffloadError, match=f"in {place}: No such file or directory; make the folder"):
        wait_offload(handle, tensor)
    place.mkdir()
    handle = moved_out(tensor, str(place))
    place.rmdir()  # the file has no name there
    assert torch.equal(brought_back(handle, tensor), tensor)


def test_a_file_that_ends_early(folder: str) -> None:
    tensor = torch.randn(100_000)
    handle = moved_out(tensor, folder)
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.is_symlink() and os.readlink(link).startswith(folder):
            os.truncate(link, 5000)
    again = reload(handle, [100_000], [1], torch.float32, CPU)
    with pytest.raises(OffloadError, match=f"cannot read 391 KiB in {folder}: .*ended early"):
        wait_reload(again, handle)
    del handle, again
    assert torch.equal(brought_back(moved_out(tensor, folder), tensor), tensor)


def test_another_size_than_was_moved_out(folder: str) -> None:
    handle = moved_out(torch.randn(10), folder)
    with pytest.raises(OffloadError, match="40 bytes were moved out, and 44 are asked back"):
        brought_back(handle, torch.empty(11))


def test_a_handle_that_is_none() -> None:
    with pytest.raises(OffloadError, match="keep the handle itself"):
        reload(torch.tensor([2**40]), [1], [1], torch.float32, CPU)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_child_has_a_file_of_its_own(folder: str) -> None:
    script = f"""
        import os, sys, torch
        from dtr_fx.errors import OffloadError
        from dtr_fx.tiers.operators import offload, reload, wait_offload, wait_reload

        def there_and_back(value):
            tensor = torch.full((50_000,), value)
            handle = offload(tensor, {folder!r})
            wait_offload(handle, tensor)
            return handle, tensor

        def check(handle, tensor):
            again = reload(handle, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            wait_reload(again, handle)
            assert torch.equal(again, tensor)

        mine = there_and_back(1.0)
        child = os.fork()
        if not child:
            try:
                check(*mine)
            except OffloadError as error:
                print(error)
            check(*there_and_back(2.0))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        check(*mine)
    """
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert "run forward and backward pass in one process" in done.stdout


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-u", "-c", textwrap.dedent(script)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)


FOREVER = """
    import sys, torch
    from dtr_fx.tiers.operators import offload, reload, wait_offload, wait_reload
    folder, value = sys.argv[1], float(sys.argv[2])
    tensor = torch.full((500_000,), value)
    for step in range(10**9):
        handles = [offload(tensor + number, folder) for number in range(4)]
        for number, handle in enumerate(handles):
            again = reload(handle, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            wait_reload(again, handle)
            assert torch.equal(again, tensor + number)
        if step == 3:
            print("runs")
"""


def test_two_processes_in_one_folder_of_which_nothing_stays_when_they_are_killed(tmp_path: Path) -> None:
    code = textwrap.dedent(FOREVER)
    processes = [
        subprocess.Popen([sys.executable, "-u", "-c", code, tmp_path, value], stdout=subprocess.PIPE)
        for value in ("1", "20")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"runs\n"
        assert list(tmp_path.iterdir()) == []
        assert [process.poll() for process in processes] == [None, None]
        processes[0].kill()
        assert processes[0].wait(60) == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == []


# --- the option --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [tier_module, forms_module])
def test_the_examples_in_the_documentation(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 1
    assert found.failed == 0


def test_every_form_of_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    assert parse_tier("host") == Tier("host")
    assert parse_tier("16GiB") == parse_tier("host:16GiB") == parse_tier(16 * 2**30)
    assert parse_tier("16GiB") == Tier("host", limit=16 * 2**30)
    assert parse_tier(here) == parse_tier(tmp_path) == parse_tier("./") == Tier("disk", here)
    assert parse_tier(f"{here}:1KB") == Tier("disk", here, 1000)
    disk = parse_tier("disk:1KB")
    assert disk is not None
    assert disk.kind == "disk"
    assert Path(disk.folder).is_dir()
    for tier in (Tier("host"), Tier("host", limit=5), Tier("disk", here), Tier("disk", here, 7), disk):
        assert parse_tier(str(tier)) == tier == parse_tier(tier)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("hots", "unknown; did you mean 'host'"),
        ("somewhere", "unknown; choose one of 'host', 'disk'"),
        ("16Gb", "no bytes; write 'host' or 'disk'"),
        ("60%", "no bytes"),
        ("", "unknown"),
        (True, "bool is no tier"),
        (0.5, "float is no tier"),
        (0, "a limit is at least one byte"),
        ("0GiB", "a limit is at least one byte"),
        ("disk:0", "a limit is at least one byte"),
        ("/no/such/folder", "there is no folder /no/such/folder; make it, or name another"),
        ("/proc", "no file can be made in /proc: .*; name another folder"),
        ("disk:1000TiB", "GiB free, and 1000 TiB are asked"),
    ],
)
def test_what_is_no_tier(given: object, why: str) -> None:
    with pytest.raises(OptionError, match=f"^offload={given!r}: .*{why}"):
        parse_tier(given)


def test_host_memory_is_no_tier_of_a_cpu() -> None:
    with pytest.raises(OptionError, match=r"has its tensors in host memory.*frees nothing; write 'disk'"):
        check_device(Tier("host"), CPU)
    with pytest.raises(OffloadError, match="write 'disk'"):
        offload(torch.zeros(3), "host")
    with pytest.raises(OptionError, match=r"takes tensors of the CPU.*write 'host'"):
        check_device(Tier("disk", "/tmp"), torch.device("cuda"))
    check_device(Tier("disk", "/tmp"), CPU)


# --- how fast it is ----------------------------------------------------------------------------------------


@pytest.fixture
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DTR_CACHE", str(tmp_path / "cache"))
    bandwidth._known.cache_clear()
    yield tmp_path / "cache"
    bandwidth._known.cache_clear()


def test_a_bandwidth_is_measured_once(folder: str, kept_in: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = Tier("disk", folder)
    first = bandwidth.measured_bandwidth(tier, CPU)
    assert first.source == "measured"
    assert 1e6 < min(first.out, first.back) <= max(first.out, first.back) < 1e12
    assert 0 < first.latency < 1
    assert usage(tier).peak == 0  # with a file of its own
    [file] = kept_in.iterdir()
    file.write_text('{"out": 2.0, "back": 3.0, "latency": 4.0}')
    assert bandwidth.measured_bandwidth(Tier("disk", folder, 5000), CPU) == first  # this process knows it
    bandwidth._known.cache_clear()
    assert bandwidth.measured_bandwidth(tier, CPU) == Bandwidth(2.0, 3.0, 4.0, "measured")
    for damaged in ('{"out": 0.0, "back": 3.0, "latency": 4.0}', "no json", "[]", '{"out": 1}'):
        file.write_text(damaged)
        bandwidth._known.cache_clear()
        with caplog.at_level(logging.WARNING):
            assert bandwidth.measured_bandwidth(tier, CPU).out > 1e6
        assert f"{file} is ignored" in caplog.text
        caplog.clear()


def test_a_bandwidth_that_cannot_be_measured(tmp_path: Path, kept_in: Path) -> None:
    with pytest.raises(OptionError, match=r"a trial of .* failed: .*No such file or directory"):
        bandwidth.measured_bandwidth(Tier("disk", str(tmp_path / "none")), CPU)
    with pytest.raises(OptionError, match="write 'disk'"):
        bandwidth.measured_bandwidth(Tier("host"), CPU)


# --- on a device -------------------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_back_to_a_device(layout: str) -> None:
    tensor = LAYOUTS[layout]().cuda()
    again = brought_back(moved_out(tensor, "host"), tensor)
    assert same_bits(again.cpu(), tensor.detach().cpu())
    assert again.stride() == tensor.stride()


@pytest.mark.gpu
@needs_cuda
def test_copies_and_kernels_side_by_side() -> None:
    tier = f"host:{16 * MIB}B"
    device = torch.device("cuda")
    for step in range(50):
        values = [torch.full((MIB // 4,), float(step + number), device=device) for number in range(10)]
        expected = sum(value.sum().item() for value in values)
        handles = []
        while values:
            value = values.pop()
            handle = offload(value, tier)
            torch.cuda._sleep(100_000)
            wait_offload(handle, value)
            handles.append(handle)
            del value
            torch.full((MIB // 4,), -1.0, device=device)  # in the memory that is free now
        like = torch.empty(MIB // 4, device=device)
        assert sum(brought_back(handle, like).sum().item() for handle in handles) == expected
        for handle in handles:
            reload(handle, like.shape, like.stride(), like.dtype, like.device)  # given up at once
    del handles, handle
    assert usage(tier).now == 0
    assert usage(tier).peak <= usage(tier).held <= 16 * MIB


@pytest.mark.gpu
@needs_cuda
def test_device_memory_is_free_once_it_is_waited_for() -> None:
    tensor = torch.randn(MIB, device="cuda")
    before = torch.cuda.memory_allocated()
    handle = moved_out(tensor, "host")
    del tensor
    assert torch.cuda.memory_allocated() == before - 4 * MIB
    assert brought_back(handle, torch.empty(MIB, device="cuda")).isfinite().all()
    speed = bandwidth.measured_bandwidth(Tier("host"), torch.device("cuda", 0))
    assert min(speed.out, speed.back) > 1e9
