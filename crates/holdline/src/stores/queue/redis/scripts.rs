//! The scripts of a line.

use holdline_redis_client::Script;

macro_rules! lua {
    ($($file:literal),+) => { concat!($(include_str!(concat!("lua/", $file)), "\n"),+) };
}

pub(super) static ENTER: Script = Script::new(lua!(
    "limits.lua",
    "enter_head.lua",
    "clock.lua",
    "enter_one.lua",
    "queue.lua",
    "enter.lua"
));
pub(super) static LEAVE: Script =
    Script::new(lua!("limits.lua", "leave_head.lua", "leave_one.lua", "queue.lua", "leave.lua"));
pub(super) static EVICT: Script = Script::new(lua!(
    "limits.lua",
    "leave_head.lua",
    "clock.lua",
    "evicted.lua",
    "leave_one.lua",
    "queue.lua",
    "evict.lua"
));
pub(super) static BATCH: Script = Script::new(concat!(
    lua!("limits.lua", "batch_head.lua", "clock.lua"),
    "local function enter(line, head, tail, how)\n",
    lua!("enter_one.lua", "queue.lua", "enter.lua"),
    "end\nlocal function leave(line, head, id, barred_for)\n",
    lua!("leave_one.lua", "queue.lua", "leave.lua"),
    "end\n",
    lua!("batch.lua")
));
pub(super) static BUSY: Script = Script::new(lua!("busy.lua"));
pub(super) static LOOK: Script = Script::new(lua!("look.lua"));
