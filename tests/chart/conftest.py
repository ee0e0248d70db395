"""Chart tests need helm: that of localnode's cache, or one on PATH."""

from __future__ import annotations

import pytest

from support import kube_server


@pytest.fixture(autouse=True)
def helm() -> str:
    return kube_server.helm()
