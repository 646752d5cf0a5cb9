"""Programs that a machine may lack: Debian's, by their paths; nothing is looked up elsewhere."""

import shutil

from expected import lacking

PACKAGES = {"promtool": "prometheus"}  # where they are not named like the program


def needed(*programs):
    """Their paths; the test is skipped where one is missing, and fails where CI put them there
    (COREG_EXPECTED).
    """
    found = {program: shutil.which(program) for program in programs}
    if missing := [program for program, path in found.items() if path is None]:
        packages = dict.fromkeys(PACKAGES.get(program, program) for program in missing)
        told = (
            f"{', '.join(missing)}: not on this machine (Debian: apt-get install"
            f" {' '.join(packages)})"
        )
        lacking(*missing, told=told)
    return [str(path) for path in found.values()]
