"""Chart tests need helm: that of localnode's cache, or one on PATH."""

from __future__ import annotations

import os
import shutil

import pytest

from support.kube_server import binary


@pytest.fixture(autouse=True)
def helm() -> str:
    found = shutil.which(binary("helm"))
    if found is None:
        if os.environ.get("DASK_ADAPTIVE_REQUIRE_K8S") == "1":
            raise AssertionError("helm is missing; build it with: localnode/build.sh")
        pytest.skip("helm is missing; build it with: localnode/build.sh")
    return found
