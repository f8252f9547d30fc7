# SPDX-License-Identifier: Apache-2.0
import pytest

from server import Server

LOG_LINES = 40


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the end of the log of every server that runs."""
    report = (yield).get_result()
    if report.failed:
        for server in Server.live:
            lines = server.log().splitlines()[-LOG_LINES:]
            report.sections.append((f"log of kt run {server.model_dir} {' '.join(server.flags)}", "\n".join(lines)))
