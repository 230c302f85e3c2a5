"""The subcommands of ``grandrounds``, one file each; they talk to the user and leave the work to the package."""
