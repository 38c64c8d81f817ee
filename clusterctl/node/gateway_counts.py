"""What the gateway answered, counted from the lines that HAProxy writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Dict

from clusterctl.node.documents import KeyUse


@dataclass
class GatewayCounts:
    """What the gateway answered, read from its log lines, and kept in a file."""

    served: int = 0
    retried: int = 0
    failed: int = 0
    refused: int = 0
    keys: Dict[str, KeyUse] = field(default_factory=dict)
    members: Dict[str, int] = field(default_factory=dict)  # By backend/server

    def take(self, line: str, today: str) -> None:
        """Count one line of the gateway; lines that are not about a request are ignored."""
        try:
            entry = json.loads(line)
            status, retries = int(entry["status"]), int(entry["retries"])
            key, server = str(entry["key"]), f"{entry['backend']}/{entry['server']}"
            ended = str(entry["ended"])
            spent = [_number(entry["prompt"]), _number(entry["completion"])] if status < 500 else []
        except (ValueError, LookupError, TypeError):
            return
        if entry["server"] == "<NOSRV>" and status != 503:
            self.refused += 1
            return
        self.retried += retries != 0
        # The client's own end of a request (C) is no failure.
        if status >= 500 or ended[:1] in "Ss":
            self.failed += 1
        else:
            self.served += 1
            self.members[server] = self.members.get(server, 0) + 1
        use = self.keys.get(key, KeyUse(key))
        of_day = use.tokens_of_day if use.day == today else 0
        self.keys[key] = replace(
            use,
            requests=use.requests + 1,
            prompt_tokens=use.prompt_tokens + sum(spent[:1]),
            completion_tokens=use.completion_tokens + sum(spent[1:]),
            day=today,
            tokens_of_day=of_day + sum(spent),
        )


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 0
