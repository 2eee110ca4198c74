"""Which accelerator a foreign rank must start on."""

from hypothesis import given
from hypothesis import strategies as st

from meshwright.layout import ORDERS, Layout
from meshwright.plan.numbering import DP_LAST, PP_LAST, is_numbered, places

degree = st.sampled_from((1, 2, 3, 4))
layouts = st.builds(Layout, tp=degree, cp=degree, pp=degree, dp=degree, order=st.sampled_from(ORDERS))


def test_a_hand_worked_case():
    # Two stages, three replicas. The plan: rank = pp + 2 dp. Pipeline last: rank = dp + 3 pp.
    layout = Layout(pp=2, dp=3, order=DP_LAST)
    assert places(layout, PP_LAST) == [0, 2, 4, 1, 3, 5]
    assert not is_numbered(layout, PP_LAST) and is_numbered(layout, DP_LAST)


def test_axes_of_one_rank_do_not_matter():
    assert is_numbered(Layout(tp=4, dp=8), PP_LAST) and is_numbered(Layout(tp=4, dp=8), DP_LAST)


@given(layouts, st.sampled_from(ORDERS))
def test_every_accelerator_is_used_once_and_holds_the_same_coordinates(layout, order):
    placed = places(layout, order)
    assert sorted(placed) == list(range(layout.num_ranks))
    assert (placed == list(range(layout.num_ranks))) == is_numbered(layout, order)
