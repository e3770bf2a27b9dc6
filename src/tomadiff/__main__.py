"""``python -m tomadiff``, which is also what ``accelerate launch -m tomadiff`` runs."""

from tomadiff.cli.main import main

if __name__ == "__main__":
    main()
