"""`python -m holdline`: the program of this wheel."""

import os
import sys
import sysconfig

program = os.path.join(sysconfig.get_path("scripts"), "holdline")
if not os.path.isfile(program):  # installed by `pip install --user`
    program = os.path.join(sysconfig.get_path("scripts", f"{os.name}_user"), "holdline")
os.execv(program, [program, *sys.argv[1:]])
