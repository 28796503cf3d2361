<?php
// Works for a tenant in PHP and in the database, and records this process's usage before and after.
function used_us(): int
{
    $used = getrusage();
    return ($used['ru_utime.tv_sec'] + $used['ru_stime.tv_sec']) * 1000000 + $used['ru_utime.tv_usec'] + $used['ru_stime.tv_usec'];
}

$began = used_us();
['tenant' => $tenant, 'ms' => $ms, 'rows' => $rows] = $_GET;
while (used_us() < $began + $ms * 1000) {
    md5(str_repeat('.', 10000));
}
if ($rows > 0) {
    $database = pg_pconnect('@DATABASE@');
    pg_query($database, "select count(*) from (select generate_series(1, $rows)) as row /* tenant $tenant */");
}
header('Content-Length: 5');
echo "done\n";
file_put_contents('@FOLDER@/work/' . getmypid(), "$tenant $began " . used_us() . "\n", FILE_APPEND);
