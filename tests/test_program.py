import os

import pytest

from program import SERVER, Program
from talk import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True


def test_a_program_whose_test_was_killed_is_ended_and_others_go_on(tmp_path):
    (tmp_path / "program.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]))\n")
    assert os.environ[SERVER]
    left, other = (Program(tmp_path / "program.py", seconds, folder=tmp_path) for seconds in (60, 0.2))
    left.process.connection.close()  # as the system does for a process that was killed
    until(lambda: gone(left.pid))
    assert other.ended().code == 0
    assert Program(tmp_path / "program.py", 0, folder=tmp_path).ended().code == 0
