"""The catalogue of settings, the settings file, and how each setting is applied inside a process."""
