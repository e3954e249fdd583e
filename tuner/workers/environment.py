"""The environment of worker processes: that of this process, without what may be a secret.

Workers parse models and run kernels of clients. A memory error in one of them must not read the
address or the password of the database, or the keys of other services.
"""

import re
from collections.abc import Mapping

#: Variable with the number of cores of the coordinator, in processes that have fewer.
MACHINE_CORES = "SUBGRAPH_TUNER_CORES"

# Words in names of variables with secrets, and names that PostgreSQL's clients read.
_SECRET_NAME = re.compile(
    r"^PG[A-Z]|DATABASE|PASSW|SECRET|TOKEN|CREDENTIAL|COOKIE|ACCESS_?KEY|API_?KEY|PRIVATE_?KEY|_AUTH",
    re.IGNORECASE,
)
# A URL with a password, in the variable of any program.
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that may hold a secret."""
    return {
        name: value
        for name, value in environ.items()
        if not _SECRET_NAME.search(name) and not _URL_WITH_PASSWORD.search(value)
    }
