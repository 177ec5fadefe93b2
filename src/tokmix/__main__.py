from tokmix.cli.main import entry

raise SystemExit(entry())
