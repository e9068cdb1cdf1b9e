"""Language models of transformers as programs that generate: `dovetail.freeze_generation`."""
