"""The command `coreg-agent`."""

from coreg_wire.terminal import end_quietly

end_quietly()
