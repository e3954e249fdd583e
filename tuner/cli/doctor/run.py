"""All checks of this machine, in their order."""

from collections.abc import Iterator

from tuner.cli.doctor import compilers, packages, resources, storage
from tuner.cli.doctor.check import Check, guard
from tuner.library import processors
from tuner.settings import Settings


def run_checks(settings: Settings) -> Iterator[Check]:
    """Run every check one after the other."""
    yield packages.check_tuner()
    yield packages.check_python()
    for package in packages.PACKAGES:
        yield packages.check_package(package)
    yield guard("peers", packages.check_peers, essential=False)
    yield guard("C compiler", compilers.check_compiler)
    yield guard("linker", compilers.check_linker)
    yield guard("target", lambda: compilers.check_target(settings))
    yield guard("CUDA", compilers.check_cuda, essential=False)
    yield guard(
        "database",
        lambda: storage.check_database(settings.database),
        fix=storage.DATABASE_FIX,
    )
    yield guard("data directory", lambda: storage.check_data_dir(settings.data_dir))
    yield guard("sandbox", lambda: storage.check_sandbox(settings), essential=False)
    yield guard("cores", resources.check_cores, essential=False)
    yield guard(
        "instruction sets",
        lambda: resources.check_instructions(processors.this_machine(), processors.cpu_fields()),
        essential=False,
    )
    yield guard("memory", resources.check_memory, essential=False)
    yield guard("memory kills", lambda: resources.check_kills(settings), essential=False)
