"""``python -m tomadiff``, which is also what ``accelerate launch -m tomadiff`` runs."""

from tomadiff.cli import main

if __name__ == "__main__":
    main()
