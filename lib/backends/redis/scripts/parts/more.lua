-- more.lua - the scripts of clients with --once or --min-hold: their last argument is several ones, with blanks between
-- them, because Redis 7 ends the connection of a client that sends more than 10 words before AUTH. The first one stays
-- where it was; more has all of them.
local ARGV, more = {unpack(ARGV)}, {}
for word in string.gmatch(ARGV[#ARGV], '%S+') do more[#more + 1] = word end
ARGV[#ARGV] = more[1]
