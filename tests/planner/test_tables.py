"""The tables of facts: what is read, what stays unknown, how names find rows, and what a user's file may and may not do."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from ridgeline.errors import FileFormatError, UserError
from ridgeline.planner.formats import kv_format_named, native_format, weight_format
from ridgeline.planner.hardware import devices, find_device, workshop_devices
from ridgeline.planner.tables import match, parse

FACTS = Path("/work/shared/facts")


def test_every_device_of_the_table() -> None:
    table = devices()
    assert len(table) == 39
    h100 = find_device("h100 sxm", table)
    assert (h100.memory_gb, h100.bandwidth_gb_s, h100.link_gb_s) == (80, 3350, 450)
    assert h100.ridge("bf16") == pytest.approx(295.2, abs=0.05)  # row 20
    assert (h100.usd_low, h100.usd_high) == (Decimal("2.4"), Decimal("12.29"))
    assert h100.price_dates and "Azure" in h100.price_sources and h100.spec_source


@pytest.mark.skipif(not FACTS.is_dir(), reason="the shared facts are not on this machine")
def test_the_package_has_the_shared_facts() -> None:
    for name in ("hardware.csv", "workshop_gpus.csv"):
        ours = Path(__file__).parents[2] / "src/ridgeline/planner/data" / name
        assert ours.read_text() == (FACTS / name).read_text()


def test_peaks_are_per_format_and_unknown_stays_unknown() -> None:
    table = devices()
    a100, b300 = find_device("A100 SXM", table), find_device("B300", table)
    with pytest.raises(UserError, match="no known fp8 peak"):
        a100.peak("fp8")
    assert b300.peak("int8") == 153.5e12 < b300.peak("bf16")  # half the bits, a fifteenth of the speed
    assert find_device("GB200", table).usd_low is None
    assert find_device("Apple M4 Max (40", table).ridge("fp8") is None


@pytest.mark.parametrize(
    "asked, found",
    [("H100 SXM 80GB", "H100 SXM 80GB"), ("h100 sxm", "H100 SXM 80GB"), ("h100-sxm", "H100 SXM 80GB"), ("MI300", "MI300X 192GB")],
)
def test_names(asked: str, found: str) -> None:
    assert find_device(asked, devices()).name == found


@pytest.mark.parametrize(
    "asked, words", [("h100", ("PCIe", "SXM", "NVL")), ("X100", ("not known",)), ("", ("not known",)), ("sxm", ("near it",))]
)
def test_names_that_mean_several_or_none(asked: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        find_device(asked, devices())
    assert all(word in str(error.value) for word in words)
    assert error.value.field == "--device"


def test_an_equal_name_wins_over_longer_ones() -> None:
    assert match("ab", ["AB", "abc"], "model", "MODEL") == "AB"


def test_a_user_file_replaces_cells_and_adds_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("# ours\nname,mem_GB,mem_bw_GBps,bf16_dense_TFLOPS,usd_per_hour_low\nh100 sxm 80gb,,3000,-,1.99\nMy card,12,500,40,\n")
    table = devices(path)
    h100, mine = table["H100 SXM 80GB"], table["My card"]
    assert (h100.memory_gb, h100.bandwidth_gb_s, h100.usd_low) == (80, 3000, Decimal("1.99"))
    assert "bf16" not in h100.tflops and h100.peak("fp8") == 1978e12
    assert (mine.memory_gb, mine.tflops, mine.usd_low) == (12, {"bf16": 40.0}, None)
    assert len(table) == 40


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no column 'name'"), ("memory\n1\n", "no column 'name'"), ("name,mem_GB,mem_bw_GBps\nx,-5,10\n", "line 2: mem_GB is '-5'"),
        ("name,mem_GB,mem_bw_GBps\nx,abc,10\n", "mem_GB is 'abc'"), ("name,mem_GB,mem_bw_GBps\nx,1,nan\n", "mem_bw_GBps is 'nan'"),
        ("name,mem_GB,mem_bw_GBps\nx,1,\n", "must be a number above 0"), ("name,mem_GB,mem_bw_GBps\nx,1,2\nX,1,2\n", "a name of its own"),
        ("name\na,b,c\n", "3 cells under 1 columns"),
        ("name,mem_GB,mem_bw_GBps,usd_per_hour_low\nx,1,2,free\n", "usd_per_hour_low is 'free'"),
    ],
)  # fmt: skip
def test_user_files_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(FileFormatError) as error:
        devices(path)
    assert words in str(error.value) and "mine.csv" in str(error.value)


def test_user_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No such file"):
        devices(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"name\n\xff\xfe\n")
    with pytest.raises(FileFormatError, match="UTF-8"):
        devices(tmp_path / "b.csv")
    with pytest.raises(FileFormatError):
        devices(tmp_path)


def test_workshop_devices_have_tensor_peaks() -> None:
    """C24: the calculator's FLOPS column holds FP32 peaks; ours are dense bf16."""
    table = workshop_devices()
    assert len(table) == 8
    assert [table[n].tflops["bf16"] for n in ("A100 80GB", "H100", "A10G", "MI300X")] == [312, 989, 70, 1307.4]
    assert (table["H100"].usd_low, table["A100 80GB"].bandwidth_gb_s) == (Decimal("8.10"), 2039)


def test_parse_skips_remarks_and_keeps_quotes() -> None:
    rows = parse('# x\nname,notes\n"a, b","c ""d"""\n\n', "t", "name")
    assert [(r.text("name"), r.text("notes"), r.line) for r in rows] == [("a, b", 'c "d"', 3)]


def test_formats() -> None:
    assert weight_format("GPTQ").name == "int4" and weight_format("q4_k").bits == 4.5 and weight_format("BFloat16").bits == 16
    assert kv_format_named("q8_0").row_bytes(128) == 136 and kv_format_named("fp8").row_bytes(128) == 128
    assert native_format("fp8 + fp4 experts").name == "fp8+fp4-experts" and native_format("mxfp4 experts").name == "mxfp4"
    for name, call in (("int3", weight_format), ("int3", kv_format_named)):
        with pytest.raises(UserError, match="one of"):
            call(name)


def test_bad_lines_name_the_line() -> None:
    with pytest.raises(FileFormatError, match="t, line 3"):
        parse("name,n\na,1\nb,x\n", "t", "name")[1].number("n")
