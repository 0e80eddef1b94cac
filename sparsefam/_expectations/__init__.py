r"""How $E_p[\psi]$ is computed: the table of rules, and the algorithms that it names."""

from . import closed_forms as closed_forms
from . import rules as rules
