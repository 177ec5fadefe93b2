from tokmix.cli.main import main

raise SystemExit(main())
