from radiximp.cli import main

raise SystemExit(main())
