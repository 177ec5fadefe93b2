from tokmix.cli import main

raise SystemExit(main())
