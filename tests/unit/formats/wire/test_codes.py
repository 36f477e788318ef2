"""Request and response codes, compared with the constants of Apache RocketMQ 5.3.3."""

from __future__ import annotations

from wheelmq.formats.wire.codes import RequestCode, ResponseCode


def test_codes_have_the_numbers_of_apache() -> None:
    assert (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE) == (10, 310, 320)
    assert (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE) == (11, 361, 200050)
    assert (RequestCode.HEART_BEAT, RequestCode.RECALL_MESSAGE, RequestCode.GET_TIMER_METRICS) == (34, 370, 61)
    assert (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.PULL_NOT_FOUND) == (10, 13, 19)
    assert (ResponseCode.INVALID_PARAMETER, ResponseCode.ILLEGAL_OPERATION) == (29, 604)


def test_our_own_codes_have_a_separate_range() -> None:
    ours = [code for code in RequestCode if code.name.startswith("WMQ_")]
    assert ours and all(9100 <= code < 9200 for code in ours)
    assert not [code for code in RequestCode if 9100 <= code < 9200 and code not in ours]


def test_no_code_has_two_names() -> None:
    for codes in (RequestCode, ResponseCode):
        assert len(codes.__members__) == len(set(codes))
