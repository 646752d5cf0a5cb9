"""A command rings, and a process of this machine looks at once; a ring that is lost or stray does no harm."""

import asyncio
import socket
import stat

import pytest

from coreg_wire.files.disk import LOOPBACK, WakeUp, ring


@pytest.fixture
def bells(tmp_path):
    return [tmp_path / "a.bell", tmp_path / "b.bell"]


def woken(bells, during):
    """How often the process was woken, while it listened and after it ended."""
    rings = []

    async def listening():
        wake_up = WakeUp(bells, lambda: rings.append(asyncio.get_running_loop().time()))
        await wake_up.listen()
        try:
            await during(rings)
        finally:
            wake_up.close()

    asyncio.run(asyncio.wait_for(listening(), 20))
    return len(rings)


def test_a_ring_of_any_of_its_files_wakes_the_process_within_a_second(bells):
    async def during(rings):
        for count, bell in enumerate([*bells, *bells], 1):
            since = asyncio.get_running_loop().time()
            ring(bell)
            while len(rings) < count:
                await asyncio.sleep(0.001)
            assert rings[-1] - since < 1.0
        assert {stat.S_IMODE(bell.stat().st_mode) for bell in bells} == {0o600}

    assert woken(bells, during) == 4
    assert not any(bell.exists() for bell in bells), "they are removed when the process ends"


def test_a_ring_that_nobody_hears_is_no_error(bells, tmp_path):
    ring(tmp_path / "no such folder" / "bell")
    for text in ("", "no port", "0", "99999999", "-1"):
        bells[0].write_text(text)
        ring(bells[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind((LOOPBACK, 0))
        port = closed.getsockname()[1]
    bells[0].write_text(f"{port}\n")  # left behind by a process that was killed
    ring(bells[0])


def test_a_stray_datagram_only_wakes_and_a_killed_processs_file_is_replaced(bells):
    bells[0].write_text("1\n")

    async def during(rings):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stray:
            stray.sendto(b"\xff" * 1000, (LOOPBACK, int(bells[0].read_text())))
        while not rings:
            await asyncio.sleep(0.001)

    assert woken(bells, during) == 1
