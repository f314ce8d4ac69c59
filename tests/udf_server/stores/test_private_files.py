"""The log says if others can change a file of the server; what belongs to another user is refused."""

import asyncio
import logging
import os

import pytest

import udf_server as udf
from udf_server.base.errors import InvalidConfig
from udf_server.stores.opening import KeyValueStores, store_from_url
from udf_server.stores.sqlite_files import FileRefused, check_private

ME = os.getuid()
OTHER = ME + 77


@pytest.fixture
def warned(caplog):
    """Checks a file as this user. Returns what the log says, or an empty text."""
    caplog.set_level(logging.WARNING)

    def check(path):
        caplog.clear()
        check_private(path, ME)
        return " ".join(record.why for record in caplog.records)

    return check


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def test_a_folder_of_its_user_alone_is_used_without_a_word(warned, folder):
    assert warned(folder / "a.sqlite3") == ""
    (folder / "a.sqlite3").touch(mode=0o600)
    assert warned(folder / "a.sqlite3") == ""


@pytest.mark.parametrize(("what", "mode"), [("folder", 0o770), ("folder", 0o1777), ("file", 0o620), ("above", 0o777)])
def test_what_others_may_write_is_warned_of(warned, folder, what, mode):
    file = folder / "a.sqlite3"
    file.touch(mode=0o600)
    path = {"folder": folder, "file": file, "above": folder.parent}[what]
    path.chmod(mode)
    assert f"others can write to {path}, whose mode is {mode:03o}" in warned(file)
    path.chmod(0o700)


def test_a_folder_below_one_with_the_sticky_bit_is_used_without_a_word(warned, folder):
    folder.parent.chmod(0o1777)
    assert warned(folder / "a.sqlite3") == ""
    folder.parent.chmod(0o700)


def test_a_link_is_warned_of(warned, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert f"{tmp_path}/link is a link to {folder}" in warned(tmp_path / "link/a.sqlite3")
    (folder / "a.sqlite3").symlink_to(folder / "b.sqlite3")
    assert f"{folder}/a.sqlite3 is a link to {folder}/b.sqlite3" in warned(folder / "a.sqlite3")


def test_what_belongs_to_another_user_is_refused(folder, tmp_path):
    if ME == 0:
        os.chown(folder, 77, 77)
        with pytest.raises(FileRefused, match=rf"{folder} belongs to user 77, .* runs as user 0: use another folder"):
            check_private(folder / "a.sqlite3", 0)
        (tmp_path / "link").symlink_to(folder.parent)
        os.lchown(tmp_path / "link", 77, 77)
        with pytest.raises(FileRefused, match="link belongs to user 77"):
            check_private(tmp_path / "link/a.sqlite3", 0)
    else:
        with pytest.raises(FileRefused, match=f"belongs to user {ME}"):
            check_private(folder / "a.sqlite3", OTHER)


def test_stores_in_a_folder_that_others_may_write_warn_and_in_one_of_another_user_are_refused(
    folder, caplog, monkeypatch
):
    async def opened(store):
        await store.open()
        await store.close()

    async def kept():
        await (await KeyValueStores(f"file://{folder}").open("f@1")).close()

    folder.chmod(0o777)
    for opening in (lambda: opened(store_from_url(f"file://{folder}", 1 << 20)), kept):
        caplog.clear()
        asyncio.run(opening())
        assert "others may change the values of a file of this server" in caplog.text
    folder.chmod(0o700)
    if ME == 0:
        os.chown(folder, 77, 77)
    else:
        monkeypatch.setattr(os, "getuid", lambda: OTHER)
    with pytest.raises(InvalidConfig, match="belongs to user"):
        asyncio.run(opened(store_from_url(f"file://{folder}", 1 << 20)))
    with pytest.raises(udf.KeyValueError, match="belongs to user"):
        asyncio.run(kept())
