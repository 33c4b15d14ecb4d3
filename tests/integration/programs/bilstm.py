"""A two-layer bidirectional LSTM with dropout, on every path of torch: float32, float64, packed, projected."""

import hashlib

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, projection):
        super().__init__()
        self.rnn = nn.LSTM(6, 8, num_layers=2, bidirectional=True, dropout=0.3, proj_size=projection)
        self.head = nn.Linear(2 * (projection or 8), 3)

    def forward(self, x):
        out, _ = self.rnn(x)
        if isinstance(out, nn.utils.rnn.PackedSequence):
            out, _ = nn.utils.rnn.pad_packed_sequence(out)
        return self.head(out.mean(0))


torch.manual_seed(0)
digest = hashlib.sha256()
for dtype, packed, projection in [
    (torch.float32, False, 0),
    (torch.float64, False, 0),
    (torch.float32, True, 0),
    (torch.float32, False, 4),
]:
    model = Encoder(projection).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(7, 4, 6, dtype=dtype)
        if packed:
            x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 4, 2]))
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(str(loss.item()).encode())
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
print(digest.hexdigest(), torch.rand(1).item())
