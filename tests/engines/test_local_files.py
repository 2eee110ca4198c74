"""The command of a job on this machine."""

from __future__ import annotations

from meshwright.engines.local_files import local_command, local_files
from meshwright.engines.site import Site


def test_the_command_is_shown_with_the_sites_variables(request_of):
    request = request_of("cores", Site(python="py", environment={"A": "b c"}))
    (file,) = local_files(request)
    assert not file.is_kept and file.text.startswith("'A=b c' py -m meshwright train ")
    assert local_command(request)[:5] == ["py", "-m", "meshwright", "train", str(request.folder / "plan.json")]
