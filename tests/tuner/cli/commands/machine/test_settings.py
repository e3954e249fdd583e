"""``tuner settings``: the settings and their sources."""

from tests.tuner.cli.commands.conftest import Shell


def test_each_setting_has_its_value_and_its_source(shell: Shell) -> None:
    """A flag wins over a variable, a variable over the file; secrets are hidden."""
    (shell.folder / "config.toml").write_text("load_share = 0.5\nmax_stall = '3m'\n")

    answer = shell(
        *("settings", "--json", "--engine", "relay"),
        TUNER_DATABASE="postgresql://me:secret@host/db",
        TUNER_LOAD_SHARE="0.25",
        TUNER_ENGINE="relax",
        TUNER_RATE="7",
        TUNER_TOKEN="hidden",
    )

    rows = {row["name"]: (row["value"], row["source"]) for row in answer.json["settings"]}
    assert rows["database"] == ("postgresql://me:***@host/db", "TUNER_DATABASE")
    assert rows["engine"] == ("relay", "--engine")
    assert rows["load_share"] == (0.25, "TUNER_LOAD_SHARE")
    assert rows["max_stall"] == (180.0, str(shell.folder / "config.toml"))
    assert rows["cache_dir"] == (str(shell.folder / "data" / "cache"), "default")
    assert rows["keep_deleted"] == (3600.0, "default")
    assert rows["rate"] == ("7", "TUNER_RATE")
    assert "token" not in rows
    assert "hidden" not in answer.out


def test_the_table_fits_a_narrow_terminal(shell: Shell) -> None:
    """The file comes last."""
    lines = shell("settings", COLUMNS="80").out.splitlines()

    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == f"config file: {shell.folder / 'config.toml'}"


def test_secrets_are_not_shown(shell: Shell) -> None:
    """A terminal is shared, and its output ends up in reports of problems."""
    hidden = {"TUNER_WEBHOOK_SECRET": "whsec_a", "TUNER_WEBHOOK_URL": "https://b"}

    shown = shell("settings", **hidden, TUNER_WEBHOOK_PRIVATE="1").out

    assert "webhook_private" in shown
    assert not [text for text in hidden.values() if text in shown]
