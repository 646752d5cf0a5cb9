"""What an installation may lack: scikit-learn, which the estimators need and no party to a run does."""

from coreg_core.errors import NotInstalled


def require_scikit_learn(who: str) -> None:
    """Return where scikit-learn is installed.

    Parameters
    ----------
    who
        what needs it; begins the sentence.

    Raises
    ------
    NotInstalled
        it is not there; the sentence says which extra brings it. One that is there and broken tells its own error.
    """
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise NotInstalled(f"{who} needs scikit-learn: pip install 'coreg-federation[estimators]'.") from None
