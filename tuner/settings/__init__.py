"""Settings of one process, read from flags, environment variables, a config file and defaults."""

from tuner.settings.base import (
    DEFAULT_DEVICE_TOLERANCE,
    DEFAULT_MAX_STALL_SECS,
    EffectiveSetting,
    SettingOverrides,
    Settings,
    check_variables,
    config_file,
    explain_settings,
    read_settings,
)

__all__ = [
    "DEFAULT_DEVICE_TOLERANCE",
    "DEFAULT_MAX_STALL_SECS",
    "EffectiveSetting",
    "SettingOverrides",
    "Settings",
    "check_variables",
    "config_file",
    "explain_settings",
    "read_settings",
]
