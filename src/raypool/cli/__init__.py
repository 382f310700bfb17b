"""The command line. One file per noun; a command calls the client and prints what comes back."""
