"""The parts of `train_gpt.py`: the model and its text, the training in turn, and the table, picture and page."""
