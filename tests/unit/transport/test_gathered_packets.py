"""Packets that are made together are written together, and never out of order."""

from __future__ import annotations

import threading

import paramiko
import pytest

from clusterctl.transport.ordered import GatheringPacketizer


class Network:
    """A socket that keeps what each write gave it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.broken = False

    def send(self, data: bytes) -> int:
        if self.broken:
            raise BrokenPipeError
        self.writes.append(bytes(data))
        return len(data)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def packetizer(network: Network) -> GatheringPacketizer:
    return GatheringPacketizer(network)


def send(packetizer: GatheringPacketizer, text: bytes) -> None:
    message = paramiko.Message()
    message.add_bytes(b"\x02" + text)  # MSG_IGNORE
    packetizer.send_message(message)


def order(network: Network, *texts: bytes) -> list[bytes]:
    sent = b"".join(network.writes)
    return sorted((text for text in texts if text in sent), key=sent.index)


def test_a_packet_is_written_at_once(network: Network, packetizer: GatheringPacketizer) -> None:
    send(packetizer, b"first")
    assert len(network.writes) == 1


def test_gathered_packets_are_one_write(network: Network, packetizer: GatheringPacketizer) -> None:
    with packetizer.gathered():
        send(packetizer, b"first")
        send(packetizer, b"second")
        assert not network.writes
    assert len(network.writes) == 1
    assert order(network, b"first", b"second") == [b"first", b"second"]


def test_another_thread_does_not_wait_and_does_not_overtake(
    network: Network, packetizer: GatheringPacketizer
) -> None:
    with packetizer.gathered():
        send(packetizer, b"first")
        other = threading.Thread(target=send, args=(packetizer, b"second"))
        other.start()
        other.join(10)
        assert order(network, b"first", b"second") == [b"first", b"second"]
        send(packetizer, b"third")
    assert order(network, b"second", b"third") == [b"second", b"third"]


def test_a_broken_connection_is_told_at_the_end(
    network: Network, packetizer: GatheringPacketizer
) -> None:
    network.broken = True
    with pytest.raises(EOFError), packetizer.gathered():
        send(packetizer, b"first")
