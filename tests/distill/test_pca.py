"""Principal components, compared with a singular value decomposition of all points."""

import pytest
import torch

from bighmm.distill.pca import fit_pca


def points(count=200, width=7):
    draw = torch.Generator().manual_seed(0)
    mixing = torch.randn(width, width, generator=draw)
    return torch.randn(count, width, generator=draw) @ mixing + 100


def test_equals_a_singular_value_decomposition():
    x = points()
    pca = fit_pca(x.split(33), 3)
    centred = x.double() - x.double().mean(0)
    _, values, rows = torch.linalg.svd(centred, full_matrices=False)
    signs = (rows[:3] * pca.components).sum(1, keepdim=True).sign()
    torch.testing.assert_close(pca.components.double(), rows[:3] * signs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pca.mean.double(), x.double().mean(0), atol=1e-4, rtol=1e-6)
    share = values[:3].square().sum() / values.square().sum()
    assert pca.share == pytest.approx(float(share), rel=1e-5)


def test_all_components_restore_the_points():
    x = points()
    pca = fit_pca([x], 7)
    torch.testing.assert_close(pca.restore(pca.project(x)), x, atol=1e-3, rtol=1e-4)
    assert pca.share == pytest.approx(1)


def test_project_is_the_inverse_of_restore():
    pca = fit_pca([points()], 2)
    y = torch.randn(5, 2)
    torch.testing.assert_close(pca.project(pca.restore(y)), y, atol=1e-4, rtol=1e-4)


def test_errors_of_wrong_arguments():
    for width in (0, 8):
        with pytest.raises(ValueError, match=f"{width} principal components of vectors that are 7"):
            fit_pca([points()], width)
    with pytest.raises(ValueError, match="need points"):
        fit_pca([], 2)
