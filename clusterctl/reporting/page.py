"""The page of `report`: one file with its data, its program and the library of its charts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from clusterctl.reporting.escaping import one_line
from clusterctl.reporting.text import moment

_HOST_COLUMNS = {
    "host": "name", "role": "role", "address": "address", "Ray": "ray", "GPUs": "gpus",
    "Ray and API on": "control", "NCCL on": "nccl", "Gloo on": "gloo", "RDMA": "rdma",
    "link, Mbit/s": "mbit_s",
}  # fmt: skip


def page(report: Mapping[str, Any]) -> str:
    """Return the page of the document of `report --json`.

    The page loads nothing, and its policy allows only the two scripts in it.
    """
    own = resources.files("clusterctl.reporting")
    library, program = charts_library(), (own / "page.js").read_text()
    hashes = (hashlib.sha256(script.encode()).digest() for script in (library, program))
    healthy = "healthy" if report["healthy"] else "degraded"
    versions = [f"{name} {version}" for name, version in report["versions"].items() if version]
    return Template((own / "page.html").read_text()).substitute(
        title=_text(f"Cluster {report['cluster']}"),
        summary=_text(" · ".join((moment(report["time"]), healthy, *versions, report["image"]))),
        problems=_items("problem", report["problems"]),
        hosts=_table(report["hosts"]),
        pairs_note=_items("note", filter(None, [report["pairs_note"]])),
        hashes=" ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes),
        # In a script element nothing is escaped, and `</script` and `<!--` end or change it.
        document=json.dumps(report).replace("<", "\\u003c"),
        library=library,
        program=program,
    )


@cache
def charts_library() -> str:
    """Return plotly.js, from the Python package."""
    found = resources.files("plotly") / "package_data" / "plotly.min.js"
    return found.read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(one_line(text))


def _items(style: str, texts: Iterable[str]) -> str:
    return "\n".join(f'<p class="{style}">{_text(text)}</p>' for text in texts)


def _table(hosts: Sequence[Mapping[str, Any]]) -> str:
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in _HOST_COLUMNS)}</tr>"]
    for host in hosts:
        cells = (host[key] for key in _HOST_COLUMNS.values())
        rows.append(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return _text(shown) or "-"
