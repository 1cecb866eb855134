# Migrations of Rails behind the line protocol of ../main.rs: the lock is held while one runs, and
# its name is the database's. It has no way to wait.
require "logger"
require "active_record"
require "tmpdir"

$stdout.sync = true
HOST, PORT = ARGV[0].split(":")
MIGRATIONS = Dir.mktmpdir
at_exit { FileUtils.remove_entry(MIGRATIONS) }
ActiveRecord::Migration.verbose = false
ActiveRecord::Migrator.migrations_paths = [MIGRATIONS]

# A migration that runs until it is told to end.
class Run
  @count = 0
  class << self
    attr_accessor :current, :count
  end

  # Whether it runs: another one may be under way.
  def start
    number = Run.count += 1
    file = "#{MIGRATIONS}/#{number}_hold#{number}.rb"
    File.write(file, "class Hold#{number} < ActiveRecord::Migration[6.0]\n" \
                     "  def up = Run.current.wait\nend\n")
    Run.current = self
    @said, @end = Queue.new, Queue.new
    @thread = Thread.new { migrate(file) }
    @said.pop
  end

  def wait
    @said << "held -"
    @end.pop
  end

  def stop
    @end << nil
    @thread.join
    "released"
  end

  private

  def migrate(file)
    pool = ActiveRecord::Base.connection_pool
    # Older versions have it in a connection.
    owner = pool.respond_to?(:migration_context) ? pool : pool.connection
    owner.migration_context.migrate
  rescue ActiveRecord::ConcurrentMigrationError
    File.delete(file)
    @said << "refused"
  rescue StandardError => e
    @said << "error #{e.full_message(highlight: false).tr("\n", " ")}"
  end
end

puts "ready"
$stdin.each_line do |line|
  verb, _, database = line.split
  case verb
  when "lock", "try"
    ActiveRecord::Base.establish_connection(
      adapter: "postgresql", host: HOST, port: PORT, username: "postgres", database: database
    )
    puts Run.new.start
  when "unlock" then puts Run.current.stop
  else exit
  end
end
