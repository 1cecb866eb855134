<?php
// Symfony's locks on PostgreSQL behind the line protocol of ../main.rs. They last as long as their
// connection.
require 'Symfony/Component/Lock/autoload.php';

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\PostgreSqlStore;

[$host, $port] = explode(':', $argv[1]);
$dsn = "pgsql:host=$host;port=$port;dbname=postgres";
$factory = new LockFactory(new PostgreSqlStore($dsn, ['db_username' => 'postgres']));
$held = null;

function answer(array $words): string
{
    global $factory, $held;
    switch ($words[0]) {
        case 'lock':
        case 'try':
            $lock = $factory->createLock($words[2], null);
            if (!$lock->acquire($words[0] === 'lock')) {
                return 'refused';
            }
            $held = $lock;
            return 'held -';
        case 'unlock':
            $held->release();
            return 'released';
        default:
            exit(0);
    }
}

echo "ready\n";
while (($line = fgets(STDIN)) !== false) {
    try {
        echo answer(explode(' ', trim($line))), "\n";
    } catch (Throwable $error) {
        echo 'error ', str_replace("\n", ' ', (string) $error), "\n";
    }
}
