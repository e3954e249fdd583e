"""Check of the kernel's means to confine worker processes."""

from tuner.cli.doctor.check import Check
from tuner.settings import Settings
from tuner.workers.confinement import landlock, sandbox

_NAME = "sandbox"


def check_sandbox(settings: Settings) -> Check:
    """Report what the kernel can keep workers from, and the setting."""
    mode, problem = settings.worker_sandbox, sandbox.shortcoming()
    version = landlock.abi_version()
    details = {"mode": mode, "landlock": version}
    if mode == "off":
        fix = "unset worker_sandbox, unless you debug workers"
        text = "off: workers reach the files and the network of their user"
        return Check(_NAME, "warning", text, fix, essential=False, details=details)
    if problem:
        fix = "run a kernel of version 6.2 or later with Landlock and seccomp"
        if mode == "auto":
            problem = f"a service does not start here: {problem}"
            fix += ", or set worker_sandbox to partial"
        if mode == "required":
            return Check(_NAME, "missing", problem, fix, details=details)
        return Check(_NAME, "warning", problem, fix, essential=False, details=details)
    text = f"{mode}: Landlock {version} and seccomp confine workers"
    return Check(_NAME, "ok", text, essential=False, details=details)
