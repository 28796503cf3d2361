u32 seen[4];

on call(u32 which, u32 by)
{
    seen[which] += by;
    return seen[which] > 9 ? -1 : by / which;
}
