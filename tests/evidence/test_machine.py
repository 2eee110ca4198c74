"""A machine read from free text: what an accelerator gets, and what had to be assumed."""

from __future__ import annotations

import pytest

from meshwright.describe.load import accelerator
from meshwright.errors import InputError
from meshwright.evidence.machine import machine, read_fabric, stated_fabric_gbit_per_s
from meshwright.units import GB

HPE = (
    "Infiniband, Ethernet | 8x HPE Slingshot SA210S Ethernet 200Gb 1-port PCIe NIC, 8x HPE InfiniBand NDR/Ethernet 400Gb 1-port OSFP "
    "PCIe5 x16 MCX75310AAS-NEAT Adapter, 1x HPE InfiniBand HDR/Ethernet 200Gb 2-port QSFP56 PCIe4 x16 MCX653106A-HDAT Adapter"
)


@pytest.mark.parametrize(
    "text, per_node, gbit_per_s",
    [
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, Management: 100Gb/s Ethernet NIC", 8, 400),
        ("Storage+Management: 1x NVIDIA BlueField 2 DPU 100Gb/s, Compute: 8x NVIDIA ConnectX-7 IB NDR 400Gb/s", 8, 400),
        ("Management: 1x Bluefield-2 DPU Ethernet 100Gb/Sec, Compute: 8x ConnectX-7 InfiniBand NDR 400Gb/Sec", 8, 400),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 8, 400),
        ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC | Ethernet/Infiniband on switching network", 8, 400),
        ("8x ConnectX-8 IB XDR 800Gb/s + 400Gb/s Ethernet NIC", 8, 800),
        ("4x ConnectX-8 800 Gb/s Ethernet MRC", 4, 800),
        ("4x ConnectX-8 Ethernet NDR 2x400 Gb/s", 4, 800),
        ("16x 200 Gb/s ConnectX-8 RoCE ports per node (4 cards) | 4-plane, multi-rail, non-blocking fat-tree Spectrum-X RoCE", 4, 800),
        ("BF3 200Gbps for NS and 2xBF3 400Gbps for EW", 4, 200),
        ("Compute: 8x MT43244 BlueField-3 200Gb/s, Management: 2x100Gb/s Ethernet NIC", 8, 200),
        (HPE, 8, 400),
        ("8x ConnectX-7 NDR", 8, 400),
        ("800 Gb/s per GPU", 4, 800),
        ("8x 1.6 Tb/s ConnectX-9", 8, 1600),
        ("4x ConnectX-7 IB NDR 400Gb/s", 8, 200),
    ],
)
def test_counts_and_speeds_give_what_one_accelerator_gets(text: str, per_node: int, gbit_per_s: float) -> None:
    assert stated_fabric_gbit_per_s(text, per_node) == gbit_per_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "N/A",
        "Ethernet, Infiniband",
        "100GbE InfiniBand",
        "10G Ethernet | RJ45",
        "InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s",
        "Management: 1x Ethernet 10GB/Sec",
        "0x ConnectX-7 400Gb/s",
        "2 x Ethernet Controller X710 for 10GBASE-T",
    ],
)
def test_a_text_without_ports_and_speed_states_nothing(text: str) -> None:
    assert stated_fabric_gbit_per_s(text, 8) is None


@pytest.mark.parametrize(
    "device, text, kind, giga_bytes_per_s, num_planes, assumed",
    [
        ("H100", "", "ndr", 50, 1, True),
        ("GB300", "", "xdr", 100, 1, True),
        ("H100", "ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s", "roce-400", 50, 1, True),
        ("GB200", "4x ConnectX-8 800 Gb/s Ethernet MRC", "spectrum-x-mrc", 100, 8, False),
        ("GB300", "16x 200 Gb/s ConnectX-8 RoCE ports per node | 4-plane Spectrum-X RoCE", "spectrum-x-mrc", 100, 4, False),
        ("GB300", "4x ConnectX-8 IB XDR 800 Gb/s", "xdr", 100, 1, False),
    ],
)
def test_the_fabric_has_a_kind_a_speed_and_planes(
    device: str, text: str, kind: str, giga_bytes_per_s: float, num_planes: int, assumed: bool
) -> None:
    fabric = read_fabric(accelerator(device), 4 if device.startswith("GB") else 8, text)
    assert (fabric.link.name, fabric.bytes_per_s / GB, fabric.num_planes, fabric.assumed) == (kind, giga_bytes_per_s, num_planes, assumed)


@pytest.mark.parametrize(
    "device, num, per_node, scale_up, tiers",
    [
        ("H100", 512, 8, "NVLINK Gen4 900 GB/s", [("node", "nvlink-4", 8, 8), ("fabric", "ndr", 512, 512)]),
        ("H200", 8, 8, "NVLINK Gen5", [("node", "nvlink-4", 8, 8), ("fabric", "ndr", 8, 8)]),  # the chip's own generation wins
        ("GB200", 8192, 4, "NVLINK Gen4", [("rack", "nvlink-5", 64, 72), ("fabric", "ndr", 8192, 8192)]),
        ("GB200", 72, 4, "", [("rack", "nvlink-5", 72, 72), ("fabric", "ndr", 72, 72)]),
        ("GB200", 36, 4, "", [("rack", "nvlink-5", 36, 72), ("fabric", "ndr", 36, 36)]),
        ("GB300", 144, 4, "", [("rack", "nvlink-5", 72, 72), ("fabric", "xdr", 144, 144)]),
        ("GB300", 96, 4, "", [("rack", "nvlink-5", 48, 72), ("fabric", "xdr", 96, 96)]),
        ("L40S", 64, 4, "PCIe Gen4", [("node", "pcie-4", 4, 4), ("fabric", "roce-200", 64, 64)]),
        ("H100", 8, 8, "PCIe Gen5", [("node", "pcie-5", 8, 8), ("fabric", "ndr", 8, 8)]),
        ("H200-NVL", 8, 8, "4-way NVIDIA NVLINK bridge", [("bridge", "nvlink-4", 4, 4), ("node", "pcie-5", 8, 8), ("fabric", "ndr", 8, 8)]),
        ("H200-NVL", 4, 4, "", [("bridge", "nvlink-4", 4, 4), ("node", "pcie-5", 4, 4), ("fabric", "ndr", 4, 4)]),
        ("MI300X", 16, 8, "None", [("node", "xgmi-mi300x", 8, 8), ("fabric", "roce-400", 16, 16)]),
        ("A100", 2, 8, "", [("node", "nvlink-3", 2, 8), ("fabric", "hdr", 2, 2)]),
    ],
)
def test_tiers_follow_from_the_accelerator_and_the_counts(
    device: str, num: int, per_node: int, scale_up: str, tiers: list[tuple[str, str, int, int]]
) -> None:
    cluster = machine("m", device, num, per_node, "", scale_up).cluster
    assert [(tier.name, tier.link, tier.num_accelerators, tier.num_installed) for tier in cluster] == tiers


def test_an_assumed_network_is_reported_only_where_it_is_crossed() -> None:
    assert machine("m", "H100", 8, 8).assumptions == ()
    (assumption,) = machine("m", "H100", 16, 8).assumptions
    assert assumption == "network: ndr at 400 Gb/s per accelerator, as in the vendor's reference system"


def test_what_the_catalogue_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match="no accelerator named 'R9000'"):
        machine("m", "R9000", 8, 8)
    with pytest.raises(InputError, match="no network within a node of gaudi2"):
        machine("m", "Gaudi2", 8, 8)
    with pytest.raises(InputError, match="no reference network of trainium2"):
        machine("m", "Trainium2", 32, 16)


@pytest.mark.parametrize(
    "device, num, pod, link, gbit_per_s",
    [
        ("TPU-v5p", 6144, 6144, "ici-v5p", 0),  # a slice of a pod
        ("TPU-v5e", 4096, 256, "ici-v5e", 25),
        ("TPU-Trillium", 3072, 256, "ici-v6e", 100),
    ],
)
def test_a_tpu_pod_is_one_domain_and_pods_meet_over_the_data_center_network(
    device: str, num: int, pod: int, link: str, gbit_per_s: float
) -> None:
    built = machine("m", device, num, 4)
    inner, outer = built.cluster.tiers
    assert (inner.name, inner.link, inner.num_accelerators, outer.num_accelerators) == ("pod", link, pod, num)
    assert bool(built.assumptions) == (pod < num) and (not gbit_per_s or outer.bytes_per_s == gbit_per_s / 8 * 1e9)
