"""Programs for differentially private federated learning."""

__version__ = '0.2.0'
